"""The gRPC server: the Open Inference Protocol, health checks and reflection.

A gRPC call is an HTTP/2 request with a path and headers. It passes the same `http.gate.Gate` and model endpoint as a
request over HTTP. API keys, rate limits, deadlines, priorities, admission, limits and statistics are the same.

`port` runs the server. `calls` runs one call. `open_inference` has the methods of the protocol, and `messages`
translates tensors. The modules `open_inference_pb2` are made from `open_inference.proto`.
"""
