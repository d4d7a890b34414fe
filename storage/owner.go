package storage

import "fmt"

// Owns says whether what names this cluster and node is of this directory. What
// an empty name leaves out is not compared: an earlier version did not write it.
func (id *Identity) Owns(clusterID, nodeUUID string) bool {
	return (clusterID == "" || clusterID == id.ClusterID) && (nodeUUID == "" || nodeUUID == id.NodeUUID)
}

// Foreign is the error of a metadata store that Owns denies. It names both, for
// either may be the one that was put here.
func (id *Identity) Foreign(clusterID, nodeUUID string) error {
	if clusterID == "" {
		clusterID = "unknown"
	}
	return fmt.Errorf("the metadata is of another data directory: it was made for node %s of cluster %s, but %s names node %s of cluster %s",
		nodeUUID, clusterID, identityName, id.NodeUUID, id.ClusterID)
}
