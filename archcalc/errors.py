"""The errors that a user can mend. The command line prints one line of them and exits with 2."""


class ArchcalcError(Exception):
    """Base of every error whose message says what to do; never raised for a bug."""


class ConfigError(ArchcalcError, ValueError):
    """A model description breaks a rule. The message is `field=value: rule broken; what to do`."""


def one_of(name: str, value: object, allowed) -> None:
    """Raise ConfigError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r}: not understood; use one of {', '.join(map(str, allowed))}")


def nearest(word: str, known) -> str:
    """` (did you mean X?)` for the known word that is closest to `word`, or nothing."""
    import difflib  # only on the way to an error

    known = list(known)
    begun = [name for name in known if word and name.startswith(word)]
    close = begun or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""
