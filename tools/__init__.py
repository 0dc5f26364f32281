"""What builds and shows the project; nothing here is installed with the package."""
