#!/bin/sh
# Creates .venv with the packages of requirements/NAME.txt for each NAME given, and installs Azurite.
# If something is missing, the script says how to install it.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

find_python() {
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

has_node() {
    PATH=".venv/bin:$PATH" sh -c 'command -v npm && node -e "
        const [major, minor] = process.versions.node.split(\".\").map(Number);
        process.exit(major > 18 || (major === 18 && minor >= 18) ? 0 : 1)"' >/dev/null 2>&1
}

python=$(find_python)
[ -n "$python" ] || fail 'Python 3.11 or newer was not found. Install it:' \
    '  Debian or Ubuntu: sudo apt-get install python3 python3-venv' \
    '  macOS:            brew install python@3.12' \
    'Or name an interpreter: PYTHON=/path/to/python3 make setup'

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    "$python" -m venv .venv || fail "$python cannot create virtual environments. Install venv:" \
        '  Debian or Ubuntu: sudo apt-get install python3-venv'
fi

echo 'Installing Python packages into .venv ...'
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    $(printf -- '-r requirements/%s.txt ' "$@")
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --no-deps --ignore-requires-python -r requirements/host.txt

has_java() {
    PATH="${JAVA_HOME:+$JAVA_HOME/bin:}$PATH" java -version 2>&1 |
        sed -n 's/.* version "\([0-9]*\).*/\1/p' | awk '$1 >= 17 { found = 1 } END { exit !found }'
}

needs_java() {
    case " $* " in *" dev "* | *" spark "*) ;; *) return 1 ;; esac
}

if needs_java "$@" && ! has_java; then
    printf '%s\n' 'Java 17 or newer was not found. Everything works except the Spark jobs (spark_jobs, tests/spark). To run those, install it:' \
        '  Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless' \
        '  macOS:            brew install openjdk@17' >&2
fi

if ! has_node; then
    echo 'Node.js 18 or newer with npm was not found. Installing it into .venv ...'
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        -r requirements/node.txt && has_node || fail 'Node.js 18 or newer could not be installed. Install it:' \
        '  Debian or Ubuntu: sudo apt-get install nodejs npm' \
        '  macOS:            brew install node'
fi

echo 'Installing Azurite into local/node_modules ...'
PATH=".venv/bin:$PATH" npm ci --silent --no-audit --no-fund --prefix local
