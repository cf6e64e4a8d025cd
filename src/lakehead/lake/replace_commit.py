"""The commit that replaces everything that a table has: its data files, and its delete files of every kind."""

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.refs import MAIN_BRANCH

from lakehead.lake.merge_commit import MergeFiles


class ReplaceFiles(MergeFiles):
    """The producer of a snapshot that has the added files and no others, on top of main's present one."""

    def _manifests(self) -> list[ManifestFile]:
        snapshot = self._transaction.table_metadata.snapshot_by_name(MAIN_BRANCH)
        emptied = [
            self._emptied(manifest)
            for manifest in (snapshot.manifests(self._io) if snapshot else ())
            if manifest.has_added_files() or manifest.has_existing_files()
        ]
        return self._added(ManifestContent.DATA, self._added_data_files) + emptied

    def _emptied(self, manifest: ManifestFile) -> ManifestFile:
        """A manifest whose files are all marked as deleted by this snapshot."""
        with self.writer_of(manifest.content, self.spec(manifest.partition_spec_id)) as writer:
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                self._removed.append(entry.data_file)
                writer.delete(entry)
        return writer.to_manifest_file()
