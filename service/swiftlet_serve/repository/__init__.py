"""The model repository: versions of models that come and go while the server runs.

store      reads and writes the repository: a directory or an object store
cache      verified local copies of its versions
desired    which versions the server should serve, as the file desired.json says
version    the state of a model's version in one server
manager    makes the server serve them: fetch, verify, load, switch, drain, release
create     the manager that the settings ask for
threads    calls to a store, which may never return
shadow     sends copies of requests to a candidate version
agreement  compares two answers to the same request
report     decides whether a candidate may take over

`http.endpoints.repository_control` has the endpoints that load and unload models.
"""
