"""What training a model takes: how it is split over GPUs, the memory of a GPU, and the time of a step."""
