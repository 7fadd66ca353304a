"""From a training spec to validated settings, images, network and optimizer."""
