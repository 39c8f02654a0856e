"""The wheel has the folders of the app as they are, in ``appservice_autoscaler/_app``. It has
``shared`` once more as stubs, for type checkers of a user's rules."""

from pathlib import Path
from shutil import copyfile

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

PACKAGES = find_packages(include=["shared*", "backtest*", "spark_jobs*"])
FOLDERS = {f"appservice_autoscaler._app.{name}": name for name in [*PACKAGES, "local.data"]}


class WithStubs(build_py):
    def run(self) -> None:
        super().run()
        for module in () if self.editable_mode else Path("shared").rglob("*.py"):
            stub = Path(self.build_lib, "shared-stubs", *module.with_suffix(".pyi").parts[1:])
            self.mkpath(str(stub.parent))
            copyfile(module, stub)


setup(
    packages=["appservice_autoscaler", *FOLDERS],
    package_dir={package: name.replace(".", "/") for package, name in FOLDERS.items()},
    package_data={
        "": ["py.typed"],
        "appservice_autoscaler._app.local.data": ["*"],
        "appservice_autoscaler._app.shared.web": ["static/**", "templates/*"],
        "appservice_autoscaler._app.spark_jobs": ["log4j2.properties", "*.txt", "sample/*"],
    },
    cmdclass={"build_py": WithStubs},
)
