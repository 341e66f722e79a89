"""What is said of programs: summaries, memory, work, recorded communication, progress."""
