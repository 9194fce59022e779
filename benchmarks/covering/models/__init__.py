"""Model families of installed libraries, made small."""
