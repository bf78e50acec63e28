#!/bin/sh
# Becomes the server, as ZooKeeper's own script of this name does for "start-foreground".
# JVMFLAGS and SERVER_JVMFLAGS are lists of words, ZK_SERVER_HEAP is in MB.
set -eu

[ "${1:-start-foreground}" = start-foreground ] || {
  echo "usage: zkServer.sh start-foreground" >&2
  exit 64
}

if ls /jars/*.jar >/dev/null 2>&1; then
  jars='/jars/*'
else
  jars=/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar
fi

# shellcheck disable=SC2086
exec java -cp "$ZOO_CONF_DIR:$jars" -Xmx"${ZK_SERVER_HEAP:-1000}"m \
  -Dorg.slf4j.simpleLogger.logFile=System.out -Dorg.slf4j.simpleLogger.showDateTime=true \
  -Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS \
  ${JVMFLAGS:-} ${SERVER_JVMFLAGS:-} \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$ZOO_CONF_DIR/zoo.cfg"
