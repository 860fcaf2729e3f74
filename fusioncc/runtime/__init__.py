"""What happens while a model runs: building, inserting and launching emitted kernels."""
