"""Fine-tuning of a pre-trained model on a task, and the teachers of the task."""
