"""The command that starts the driver's JVM: Java itself where tasks run in it, Spark's own script for a cluster."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import pyspark

from lakehead.spark.conf import CLASS_PATH, DRIVER_MEMORY, JAVA_OPTIONS, LIBRARY_PATH
from lakehead.spark.java import Java

SPARK_HOME = Path(pyspark.__file__).parent
SCALA = "2.13"

# Where one of these is set, the class path or the options are more than ours, and Spark's script knows how.
SCRIPTS_OWN = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_SUBMIT_OPTS", "YARN_CONF_DIR")

OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
# What Spark's script gives to every JVM, but for the incubating vectors: only machine learning has a use for them, and
# with another set of modules than the usual one Java cannot start from its own archive of modules.
SPARKS_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)


def command_for(java: Java, conf: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """The command for what a JVM must know when it starts. Everybody on the machine can read it: no secrets."""
    local = conf["spark.master"].startswith("local") and not conf["spark.master"].startswith("local-cluster")
    if not local or LIBRARY_PATH in conf or any(environment.get(name) for name in SCRIPTS_OWN):
        given = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        return [str(SPARK_HOME / "bin" / "spark-submit"), *given, "pyspark-shell"]
    # The script starts a JVM only to print this command, and the class that it names reads arguments that we know.
    return [
        str(java.command),
        *("-cp", class_path(conf[CLASS_PATH])),
        f"-Xmx{conf[DRIVER_MEMORY]}",
        *SPARKS_OPTIONS,
        *shlex.split(conf[JAVA_OPTIONS]),
        "org.apache.spark.api.python.PythonGatewayServer",
    ]


def environment_for(java: Java, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables for either command: this Java and this Spark, whatever else is on the machine."""
    return {
        **inherited,
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_SCALA_VERSION": SCALA,
        "SPARK_CONNECT_MODE": "0",
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1",  # the script's own JVM lives for a blink
    }


def class_path(first: str) -> str:
    """Our jars and Spark's, in the order of Spark's script, so that one class-data archive fits both ways to start."""
    jars = SPARK_HOME / "jars"
    return os.pathsep.join(
        [first, str(SPARK_HOME / "conf"), *map(str, sorted(jars.glob("slf4j-api-*.jar"))), f"{jars}/*"]
    )
