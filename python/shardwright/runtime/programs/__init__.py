"""Compiled programs as their files tell them: tables, regions, code."""
