"""Run one network on a batch of arrays: OpenVINO, PyTorch or ONNX Runtime."""
