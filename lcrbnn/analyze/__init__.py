"""What a network costs and how it behaves, from the network itself."""
