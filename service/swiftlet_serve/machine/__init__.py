"""The machine: its memory, its GPUs, the set-up of a process, and a thread that watches the event loop."""
