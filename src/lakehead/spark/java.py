"""Finds the Java for Spark, and checks its version before Spark is started."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lakehead.errors import Misconfigured
from lakehead.spark.settings import SparkSettings

OLDEST = 17
ANSWER_SECONDS = 30

INSTALL = (
    f"Spark needs Java {OLDEST} or newer. Install it with `apt install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "`dnf install java-17-openjdk-headless` (Fedora, RHEL) or `brew install openjdk@17` (macOS), and set JAVA_HOME if "
    "it is not the first on the path."
)

_PROPERTY = re.compile(r"^\s+([\w.]+) = (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that works and is new enough."""

    home: Path
    version: str
    """For messages: `17.0.15`."""
    build: str
    """Identifies the build of the virtual machine."""

    @property
    def command(self) -> Path:
        """Its `java`."""
        return self.home / "bin" / "java"


def find_java(settings: SparkSettings) -> Java:
    """The Java of the settings, or the first on the path. Raises `Misconfigured` if there is none or it is too old."""
    command = _command(settings)
    try:
        asked = subprocess.run(  # noqa: S603 - what the settings name
            [command, "-XX:TieredStopAtLevel=1", "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Misconfigured(f"{command} does not run as Java ({error}). {INSTALL}") from error
    return read_answer(command, asked.stderr + asked.stdout)


def read_answer(command: Path, answer: str) -> Java:
    """Parse the output of `java -XshowSettings:properties -version`. Raises `Misconfigured` if it is not Java's."""
    properties = dict(_PROPERTY.findall(answer))
    version = properties.get("java.version", "")
    if "java.home" not in properties or not version:
        output = " ".join(answer.split())[:200] or "nothing"
        raise Misconfigured(f"{command} does not answer as Java does; it said: {output}. {INSTALL}")
    if _major(version) < OLDEST:
        raise Misconfigured(f"{command} is Java {version}, which is too old. {INSTALL}")
    names = ("java.vm.name", "java.vm.version", "java.vm.vendor", "os.arch")
    return Java(Path(properties["java.home"]), version, " ".join(properties.get(name, "") for name in names))


def _command(settings: SparkSettings) -> Path:
    if settings.java_home is not None:
        command = settings.java_home / "bin" / "java"
        if not command.is_file():
            raise Misconfigured(f"JAVA_HOME is {settings.java_home}, and there is no bin/java in it. {INSTALL}")
        return command
    found = shutil.which("java", path=settings.path)
    if found is None:
        raise Misconfigured(f"There is no Java on the path. {INSTALL}")
    return Path(found)


def _major(version: str) -> int:
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return 0
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])  # Java 8 called itself 1.8
