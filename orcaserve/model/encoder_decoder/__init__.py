"""Models of two stacks: an encoder that reads the whole input at once, and a decoder that looks at what it made."""
