"""The model repository: versions of models that come and go while the server runs.

store      reads and writes the repository: a directory or an object store
cache      verified local copies of its versions
desired    which versions the server should serve, as the file desired.json says
version    a version of a model, as one server sees it
manager    makes the server serve them: fetch, verify, load, switch, drain, release
create     the manager that the settings ask for
threads    calls to a store, which may never return
shadow     copies of requests to a candidate version
agreement  how far two answers to the same request agree
report     whether a candidate may take over
commands   the commands of the repository

`http.endpoints.repository_control` has the endpoints that load and unload models.
"""
