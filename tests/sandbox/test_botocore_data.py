"""Botocore's own files are read once for a process, those of a person each time."""

from __future__ import annotations

from pathlib import Path

from botocore.loaders import JSONFileLoader, Loader

from slurm_elastic.sandbox import botocore_data

TYPE = "service-2"


class CountingLoader(JSONFileLoader):
    """Counts the files that are looked for."""

    looked_for = 0

    def exists(self, file_path: str) -> bool:
        self.looked_for += 1
        return super().exists(file_path)


def test_the_list_of_shipped_services_is_made_once() -> None:
    botocore_data.cache_shipped_files()
    listed = Loader().list_available_services(TYPE)
    assert "ec2" in listed
    files = CountingLoader()
    assert Loader(file_loader=files).list_available_services(TYPE) == listed
    assert files.looked_for == 0
    assert "ec2" in Loader().list_available_services("paginators-1")


def test_models_of_a_person_are_listed_as_they_are_now(tmp_path: Path) -> None:
    botocore_data.cache_shipped_files()
    search = [str(tmp_path)]
    assert "own" not in Loader(extra_search_paths=list(search)).list_available_services(TYPE)
    version = tmp_path / "own" / "2026-01-01"
    version.mkdir(parents=True)
    (version / f"{TYPE}.json").write_text("{}")
    assert "own" in Loader(extra_search_paths=list(search)).list_available_services(TYPE)
