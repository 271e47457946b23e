"""What can be seen of the endpoint from outside: its numbers, a line and a trace for each request."""
