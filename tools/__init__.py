"""Scripts for developers: checks, measurements and generated documents."""
