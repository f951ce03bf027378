"""The `torch-tpu` command."""
