"""Small tools that know nothing of models or programs."""
