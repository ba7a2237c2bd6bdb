"""What a user runs: capture, finetune, quantize, train, play, profile, doctor."""
