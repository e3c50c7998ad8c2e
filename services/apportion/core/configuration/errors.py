"""What is wrong with a configuration: which key, which value, what about it, how to mend it."""

from apportion.core.workloads.document import shown


class ConfigurationError(ValueError):
    """A configuration that cannot be used. `key` is a path, as in `nodeconfig[0].name`."""

    def __init__(self, key: str, value: object, problem: str, fix: str) -> None:
        super().__init__(key, value, problem, fix)
        self.key = key
        self.value = value
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.key}: {shown(self.value)} {self.problem}: {self.fix}"
