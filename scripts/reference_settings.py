"""The text of docs/settings.md: all settings, from the model."""

from __future__ import annotations

from transom_cli.config.describe import settings_of

_INTRO = """# Settings

From weakest to strongest: the defaults below, the site's `/etc/transom.toml`, your `~/.config/transom/config.toml`
(under `$XDG_CONFIG_HOME` where that is set), the run file given with `-f`, environment variables
(`TRANSOM_<SECTION>__<KEY>`, as `TRANSOM_JOB__PARTITION`; `TRANSOM_ROOT`, `TRANSOM_NAME`, `TRANSOM_AUTO_BEAT`,
`TRANSOM_STEPS`, `TRANSOM_LOG_JSON`), flags.
A later layer replaces single keys. Lists are replaced as a whole; `job.env` is merged by name; `policy.rules` and
`notify.targets` of a stronger layer come first and replace weaker ones of the same name. An empty text unsets an
optional setting. Relative paths are relative to the file that contains them, or to the current directory.

In a variable, a list is a TOML array or shell words (`TRANSOM_JOB__SBATCH='--switches=1 --exclusive'`), `job.setup` has
one command per line, and a table is a TOML inline table or words (`TRANSOM_JOB__ENV='A=1 B=2'`). Problems in all layers
are reported together. A run's `run.toml` contains the settings that it was started with.
"""


def settings_markdown() -> str:
    """Return the text of `docs/settings.md`."""
    parts = [_INTRO]
    section: tuple[str, ...] | None = None
    for setting in settings_of():
        if setting.path[:-1] != section:
            section = setting.path[:-1]
            title = f"`[{'.'.join(section)}]`" if section else "Outside of sections"
            parts.append(f"\n## {title}\n\n| key | kind | default | meaning |\n|---|---|---|---|\n")
        kind = " or ".join(f'`"{c}"`' for c in setting.choices) or setting.kind
        default = f"`{setting.default}`" if setting.default else "unset"
        text = setting.description.replace("|", "\\|")
        parts.append(f"| `{setting.path[-1]}` | {kind} | {default} | {text} |\n")
    return "".join(parts)
