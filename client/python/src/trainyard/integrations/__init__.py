"""Callbacks for other libraries, one module for each."""
