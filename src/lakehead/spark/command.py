"""The command that starts the driver's JVM: `java` itself for a local master, `spark-submit` for a cluster."""

import os
import shlex
from collections.abc import Mapping

from lakehead.spark.conf import CLASS_PATH, DRIVER_MEMORY, JAVA_OPTIONS, LIBRARY_PATH
from lakehead.spark.installed import SPARK_HOME
from lakehead.spark.java import Java

SCALA = "2.13"

# If one of these is set, it adds to the class path or the options, which only Spark's script handles.
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
# The options of Spark's script, except the incubating vector module: only machine learning uses it, and with a
# non-default set of modules Java cannot start from its own archive of modules.
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
    """The command that starts a JVM with this configuration. All users of the machine can read it: no secrets."""
    local = conf["spark.master"].startswith("local") and not conf["spark.master"].startswith("local-cluster")
    if not local or LIBRARY_PATH in conf or any(environment.get(name) for name in SCRIPTS_OWN):
        given = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        return [str(SPARK_HOME / "bin" / "spark-submit"), *given, "pyspark-shell"]
    # The script would start another JVM just to print this command.
    return [
        str(java.command),
        *("-cp", class_path(conf[CLASS_PATH])),
        f"-Xmx{conf[DRIVER_MEMORY]}",
        *SPARKS_OPTIONS,
        *shlex.split(conf[JAVA_OPTIONS]),
        "org.apache.spark.api.python.PythonGatewayServer",
    ]


def environment_for(java: Java, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment for either command: it selects this Java and this Spark."""
    return {
        **inherited,
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_SCALA_VERSION": SCALA,
        "SPARK_CONNECT_MODE": "0",
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1",  # the script's own JVM is short-lived
    }


def class_path(first: str) -> str:
    """Our jars and Spark's, in the order of Spark's script, so that one CDS archive fits both commands."""
    jars = SPARK_HOME / "jars"
    return os.pathsep.join(
        [first, str(SPARK_HOME / "conf"), *map(str, sorted(jars.glob("slf4j-api-*.jar"))), f"{jars}/*"]
    )
