"""ONNX graphs: export, quantisation, reading and writing."""
