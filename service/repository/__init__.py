"""The model repository: versions of models that come and go while the server runs.

store      reads and writes the repository: a directory or an object store
cache      verified local copies of its versions
desired    which versions the server should serve, as the file desired.json says
manager    makes the server serve them: fetch, verify, load, switch, drain, release
shadow     copies of requests to a candidate version
control    the endpoints that load and unload models
"""
