"""Sending messages to Service Bus in large batches of exactly known size."""
