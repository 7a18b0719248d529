"""What the protocols of other servers share: routes, texts, tensors, questions and the words of errors."""
