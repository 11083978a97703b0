"""The standard library's TOML parser, or the package that replaces it in Python 3.10."""

try:
    import tomllib as tomllib
except ModuleNotFoundError:
    import tomli as tomllib  # noqa: F401
