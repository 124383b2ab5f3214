// SPDX-License-Identifier: Apache-2.0

package torchmem

// Numbers of the texts that the reader knows. They are interned in this order before the reading begins.
const (
	kAction = iota
	kAddr
	kDeviceFree
	kSize
	kStream
	kTimeUS
	kFrames
	kUserMetadata
	kForwardFrames
	kCompileContext
	kPoolID

	kName
	kFilename
	kLine

	kAddress
	kRequestedSize
	kState
	kHistory
	kRealSize

	kDevice
	kTotalSize
	kAllocatedSize
	kActiveSize
	kSegmentType
	kSegmentPoolID
	kIsExpandable
	kBlocks

	kStage

	kSegments
	kDeviceTraces
	kAllocatorSettings
	kExternalAnnotations
	kHostSegments
	kHostTraces

	kTraceOverflowed
	kAllocConfCUDA
	kAllocConf
	kExpandableSegments
	kRoundupDivisions
	kMaxSplitSize
	kCategory
	kFxNodeOp
	kFxNodeName
	kFxNodeTarget
	kFxOriginalTrace
	kFxNodeInfo
	keysEnd // at most 64: see seen in reader.Dict
)

const (
	aAlloc = keysEnd + iota
	aFree
	aFreeRequested
	aFreeCompleted
	aSegmentAlloc
	aSegmentFree
	aSegmentMap
	aSegmentUnmap
	aSnapshot
	aOOM
	aWorkspace
	aAnnotate
	aUserDefined
	actionsEnd = keysEnd + iota
)

const (
	sActiveAllocated = actionsEnd + iota
	sActivePending
	sActiveAwaiting
	sInactive
	sStart
	sEnd
	textsEnd = actionsEnd + iota
)

var known = [textsEnd]string{
	kAction: "action", kAddr: "addr", kDeviceFree: "device_free", kSize: "size", kStream: "stream", kTimeUS: "time_us",
	kFrames: "frames", kUserMetadata: "user_metadata", kForwardFrames: "forward_frames", kCompileContext: "compile_context",
	kPoolID: "pool_id", kName: "name", kFilename: "filename", kLine: "line", kAddress: "address",
	kRequestedSize: "requested_size", kState: "state", kHistory: "history", kRealSize: "real_size", kDevice: "device",
	kTotalSize: "total_size", kAllocatedSize: "allocated_size", kActiveSize: "active_size", kSegmentType: "segment_type",
	kSegmentPoolID: "segment_pool_id", kIsExpandable: "is_expandable", kBlocks: "blocks", kStage: "stage",
	kSegments: "segments", kDeviceTraces: "device_traces", kAllocatorSettings: "allocator_settings",
	kExternalAnnotations: "external_annotations", kHostSegments: "host_segments", kHostTraces: "host_traces",
	kTraceOverflowed: "trace_alloc_overflowed", kAllocConfCUDA: "PYTORCH_CUDA_ALLOC_CONF", kAllocConf: "PYTORCH_ALLOC_CONF",
	kExpandableSegments: "expandable_segments", kRoundupDivisions: "roundup_power2_divisions",
	kMaxSplitSize: "max_split_size", kCategory: "category", kFxNodeOp: "fx_node_op", kFxNodeName: "fx_node_name",
	kFxNodeTarget: "fx_node_target", kFxOriginalTrace: "fx_original_trace", kFxNodeInfo: "fx_node_info",
	aAlloc: "alloc", aFree: "free", aFreeRequested: "free_requested", aFreeCompleted: "free_completed",
	aSegmentAlloc: "segment_alloc", aSegmentFree: "segment_free", aSegmentMap: "segment_map",
	aSegmentUnmap: "segment_unmap", aSnapshot: "snapshot", aOOM: "oom", aWorkspace: "workspace_snapshot",
	aAnnotate: "annotate", aUserDefined: "user_defined",
	sActiveAllocated: "active_allocated", sActivePending: "active_pending_free", sActiveAwaiting: "active_awaiting_free",
	sInactive: "inactive", sStart: "START", sEnd: "END",
}
