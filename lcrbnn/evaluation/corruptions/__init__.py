"""The 19 corruptions of ImageNet-C, Tiny-ImageNet-C and CIFAR-10-C, computed on any device with the same bits."""
