"""Large batches to Service Bus at their true size, and one message per data set and period."""
