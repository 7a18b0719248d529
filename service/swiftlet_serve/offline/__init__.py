"""Commands that make and measure artifacts, apart from serving."""
