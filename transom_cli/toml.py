"""The standard library's TOML parser, or the package that Python 3.10 needs in its place."""

try:
    import tomllib as tomllib
except ModuleNotFoundError:
    import tomli as tomllib  # noqa: F401
