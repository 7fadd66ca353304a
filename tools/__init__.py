"""Scripts for developers, such as checks, measurements and generated documents."""
