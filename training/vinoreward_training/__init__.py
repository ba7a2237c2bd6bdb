"""What a user runs: capture, finetune, quantize, train, play, profile, bench, doctor."""
