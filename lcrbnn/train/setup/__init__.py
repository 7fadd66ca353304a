"""Turn a training spec into validated settings, images, network and optimizer."""
