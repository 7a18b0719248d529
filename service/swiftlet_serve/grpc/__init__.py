"""The gRPC server: the Open Inference Protocol, health checks and reflection.

gRPC is HTTP/2, so a call has a path and headers as a request over HTTP has them. It takes the same way: the request
tracker, the request guard and a model endpoint of `service.http`. API keys, rate limits, deadlines, priorities,
admission, limits and statistics are those of every request.

`port` runs the server. `calls` runs one call. `open_inference` has the methods of the protocol, and `messages`
translates tensors. The modules `open_inference_pb2` are made from `open_inference.proto`.
"""
