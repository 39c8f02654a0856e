"""The product: what runs in Azure, and its command line."""
