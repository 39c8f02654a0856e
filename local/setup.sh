#!/bin/sh
# Creates .venv with the packages of requirements/NAME.txt for each NAME given, and installs Azurite.
# `setup.sh amqp` only adds the AMQP library to .venv, if it is missing and can be compiled here.
# If something is missing, the script says how to install it.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3.13 python3.12 python3.11 python3; fi
    for candidate in "$@"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

evaluate() { "$python" -c "import sys, sysconfig; print($1)"; }

# The AMQP library has no wheels. Its compilation needs the interpreter's compiler and Python.h.
can_compile() {
    echo '#include <Python.h>' | ${CC:-$(evaluate 'sysconfig.get_config_var("CC") or "cc"')} \
        -E -I "$(evaluate 'sysconfig.get_config_var("INCLUDEPY")')" - >/dev/null 2>&1
}

has_node() {
    PATH=".venv/bin:$PATH" sh -c 'command -v npm && node -e "
        const [major, minor] = process.versions.node.split(\".\").map(Number);
        process.exit(major > 18 || (major === 18 && minor >= 18) ? 0 : 1)"' >/dev/null 2>&1
}

has_java() {
    PATH="${JAVA_HOME:+$JAVA_HOME/bin:}$PATH" java -version 2>&1 |
        sed -n 's/.* version "\([0-9]*\).*/\1/p' | awk '$1 >= 17 { found = 1 } END { exit !found }'
}

install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" >.venv/pip.log 2>&1 && return
    if grep -q -e 'connection broken by' -e 'from versions: none' .venv/pip.log; then
        set -- 'The package index cannot be reached, or lacks a package. Check the network. Behind a proxy, set' \
            'HTTPS_PROXY (and PIP_CERT if it replaces certificates). For another index, set PIP_INDEX_URL.'
    else
        set -- 'pip could not install the packages:'
    fi
    fail "$@" "$(grep -i '^error' .venv/pip.log | tail -n 1)" 'The output of pip is in .venv/pip.log.'
}

if [ "$*" = amqp ]; then
    python=.venv/bin/python
    if [ -w .venv ] && ! $python -c 'import proton' 2>/dev/null && can_compile; then
        echo 'Compiling the AMQP library into .venv ...'
        (install -r requirements/amqp.txt) || true
    fi
    exit
fi

for folder in "$PWD" "$PWD/.venv" "$PWD/local" "$PWD/local/node_modules"; do
    [ ! -e "$folder" ] || [ -w "$folder" ] || fail "$(id -un) cannot write to $folder." \
        'Setup writes .venv and local/node_modules. Use a copy of the project in a folder of your own.'
done

python=$(find_python)
[ -n "$python" ] || fail "Python 3.11 or newer was not found${PYTHON:+ as $PYTHON}. Install it:" \
    '  Debian or Ubuntu: sudo apt-get install python3 python3-venv' \
    '  macOS:            brew install python@3.12' \
    'Or name an interpreter: PYTHON=/path/to/python3 make setup'
debian_name=$(evaluate '"python%d.%d" % sys.version_info[:2]')

blocking=
if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    "$python" -c 'import ensurepip, venv' 2>/dev/null || blocking="
$python cannot create virtual environments. Install venv:
  Debian or Ubuntu: sudo apt-get install $debian_name-venv"
fi

case " $* " in *" dev "*)
    can_compile || blocking="$blocking
No C compiler that finds Python.h was found. The AMQP library is compiled with it. Install it:
  Debian or Ubuntu: sudo apt-get install gcc $debian_name-dev
  macOS:            xcode-select --install"
    command -v chromium chromium-browser >/dev/null || printf '%s\n' \
        'chromium was not found. The tests of the dashboard in a browser are skipped. To run them, install it:' \
        '  Debian or Ubuntu: sudo apt-get install chromium' >&2 ;;
esac

case " $* " in *" dev "* | *" spark "*)
    has_java || printf '%s\n' \
        'Java 17 or newer was not found. Everything works except the Spark jobs (spark_jobs, tests/spark_jobs). To run those, install it:' \
        '  Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless' \
        '  macOS:            brew install openjdk@17' >&2 ;;
esac

[ -z "$blocking" ] || fail "Nothing was installed, because something is missing:$blocking"

[ -d .venv ] || "$python" -m venv .venv || fail "$python could not create .venv."

echo 'Installing Python packages into .venv ...'
# shellcheck disable=SC2046 # one option a word
install $(printf -- '-r requirements/%s.txt ' "$@")
install --no-deps --ignore-requires-python -r requirements/host.txt

if ! has_node; then
    echo 'Node.js 18 or newer with npm was not found. Installing it into .venv ...'
    install -r requirements/node.txt
    has_node || fail 'Node.js 18 or newer could not be installed. Install it:' \
        '  Debian or Ubuntu: sudo apt-get install nodejs npm' \
        '  macOS:            brew install node'
fi

echo 'Installing Azurite into local/node_modules ...'
PATH=".venv/bin:$PATH" npm ci --loglevel=error --no-audit --no-fund --prefix local >.venv/npm.log 2>&1 || fail \
    'npm could not install Azurite:' "$(grep -i '^npm err' .venv/npm.log | head -n 3)" \
    'Check the network. Behind a proxy, set HTTPS_PROXY. For another registry, set npm_config_registry.' \
    'The output of npm is in .venv/npm.log.'
