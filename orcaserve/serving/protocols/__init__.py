"""What other servers' clients speak: Triton and KServe, TensorFlow Serving. All of it is put as a completion."""
