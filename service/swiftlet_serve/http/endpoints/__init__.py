"""The endpoints of our own protocol: tasks, pages, the control of the repository, and their description."""
