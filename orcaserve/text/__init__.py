"""What token ids mean as text: a model's tokenizer, the way back, and grammars over both."""
