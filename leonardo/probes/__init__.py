"""What a machine has of what the project needs: each probe tries one thing and says what its absence costs."""
