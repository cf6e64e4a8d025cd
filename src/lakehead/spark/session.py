"""Builds and stops Spark sessions."""

import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakehead.errors import Misconfigured
from lakehead.spark.archive import discard
from lakehead.spark.conf import launch_conf, session_conf
from lakehead.spark.jars import Say
from lakehead.spark.java import Java
from lakehead.spark.jvm_process import EXIT_SECONDS, JvmProcess, NotStarted
from lakehead.spark.launch import DEATH_SECONDS, Jvm, death_of, end_jvm, forget_jvm
from lakehead.spark.prepared import StartingSpark, start_jvm
from lakehead.spark.reasons import SPARKS_ERRORS, reason_of
from lakehead.spark.settings import SparkSettings
from lakehead.spark.shipping import pack


def silent(_: str) -> None:
    """Ignore the message."""


def build_session(settings: SparkSettings, *, say: Say = silent) -> SparkSession:
    """Start Spark with these settings. `say` is called with a message before work that is done once and takes long.

    A process can have one session at a time; `stop_session` ends it. Java and the jars are checked before anything is
    started. Raises `Misconfigured` or `Unavailable` with a one-sentence message.
    """
    _check_alone()
    return connect(start_jvm(settings, say=say))


def connect(starting: StartingSpark) -> SparkSession:
    """Make a session in a JVM that starts. If that fails, the JVM is ended.

    Raises `Misconfigured` if it does not start or refuses the configuration, or if this process has a session.
    """
    try:
        _check_alone()
    except Misconfigured:
        starting.process.end()
        raise
    settings, archive = starting.settings, starting.archive
    try:
        return _connect(settings, starting.process, starting.conf)
    except NotStarted:
        if archive is None:
            raise
        # An archive must not prevent a start. If it was not the cause, the same error is raised again and it is kept.
        session = start(settings, starting.java, session_conf(settings, starting.jars, None))
        discard(archive)
        return session


def _check_alone() -> None:
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - asking the class in public would start one
        raise Misconfigured("This process has a Spark session already. Stop it before you build another one.")


def stop_session(session: SparkSession, *, within: float = EXIT_SECONDS) -> None:
    """End the session and its JVM, and wait for both. Afterwards this process may build another.

    A JVM that takes longer than `within` seconds to end is killed.
    """
    gateway = session.sparkContext._gateway  # noqa: SLF001 - PySpark never ends it itself
    if death_of(gateway) is None:
        session.stop()
    else:
        _forget_session(session)
    if gateway is not None:
        end_jvm(gateway, within=within)
    forget_jvm()


def _forget_session(session: SparkSession) -> None:
    """Stop a session whose JVM has ended, without the calls that PySpark would make to the JVM."""
    session.sparkContext._jsc = None  # noqa: SLF001 - the JVM cannot be called any more
    session.sparkContext.stop()
    SparkSession._instantiatedSession = None  # noqa: SLF001 - what `SparkSession.stop` does last
    SparkSession._activeSession = None  # noqa: SLF001 - as above


def start(settings: SparkSettings, java: Java, conf: dict[str, str]) -> SparkSession:
    """Start a JVM and a session in it with exactly this configuration. If that fails, the JVM is ended.

    Raises `NotStarted` if the JVM failed, and `Misconfigured` if it refused the configuration.
    """
    return _connect(settings, JvmProcess.launch(java, launch_conf(conf)), conf)


def _connect(settings: SparkSettings, process: JvmProcess, conf: dict[str, str]) -> SparkSession:
    jvm = Jvm.connect(process)
    given = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        given.set(key, value)
    try:
        context = SparkContext(conf=given, gateway=jvm.gateway)
        _say_nothing_after_death(context, jvm)
        context.pythonExec = settings.python or (sys.executable if settings.is_local else "python3")
        folder = Path(context._temp_dir)  # noqa: SLF001 - the one that ends with it
        if not settings.is_local:
            context.addPyFile(str(pack(folder)))
        elif settings.python is None:  # with our own workers, which end silently
            _meet_workers_in(folder.parent, context)
        session = SparkSession.builder.getOrCreate()
    except BaseException as error:
        reason = reason_of(error)  # asks the JVM
        _stop(jvm)
        if isinstance(error, (*SPARKS_ERRORS, ConnectionError, EOFError)):
            raise _refusal(error, reason, settings.master, jvm.output.text()) from error
        raise
    jvm.output.pass_on()
    return session


def _say_nothing_after_death(context: SparkContext, jvm: Jvm) -> None:
    """Keep PySpark's accumulator server from printing a stack trace of a connection that the JVM's death broke."""
    server = context._accumulatorServer  # noqa: SLF001 - PySpark has no public way
    print_error = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if death_of(jvm.gateway, within=DEATH_SECONDS) is None:
            print_error(request, address)

    setattr(server, "handle_error", handle_error)  # noqa: B010 - a method is replaced, which mypy would not have


def _meet_workers_in(folder: Path, context: SparkContext) -> None:
    """Let the JVM and its Python workers communicate through Unix sockets in a private folder.

    Over TCP each waits for the other's acknowledgements, and a small job takes twice as long. TCP is still used if the
    folder's path is too long for a socket, or its file system does not support them.
    """
    trial = folder / f".{UUID(int=0)}.sock"  # as long as Spark's own names
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(trial))
    except OSError:
        return
    trial.unlink()
    conf = context._jsc.sc().conf()  # noqa: SLF001 - the folder is known only when Spark runs
    conf.set("spark.python.unix.domain.socket.dir", str(folder))
    conf.set("spark.python.unix.domain.socket.enabled", "true")


def _refusal(error: BaseException, reason: str, master: str, output: str) -> Misconfigured:
    """The error of ours for an error of Spark's start; `output` is what the JVM printed."""
    advice = "Check the master, the memory and the other settings; `lakehead doctor` tries a local session."
    if not isinstance(error, Py4JJavaError | PySparkException):  # the latter once this process has had a session
        return NotStarted(f"Spark's JVM ended while it started on {master}; it said: {output}. {advice}")
    if "stopped SparkContext" in reason:  # it stopped itself, and only its log says why
        reason = output
    said = f"Spark did not start on {master}: {reason}. {advice}"
    # An archive may be the cause of a Java Error, such as a class that cannot be loaded, but not of an exception.
    return NotStarted(said) if "Error" in reason.partition(":")[0] else Misconfigured(said)


def _stop(jvm: Jvm) -> None:
    """Stop what a failed start has left running, in any state."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - the public method would start one
    with suppress(Exception):
        if context is not None:
            context.stop()
    end_jvm(jvm.gateway)
    forget_jvm()
