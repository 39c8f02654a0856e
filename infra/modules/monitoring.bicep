// Application Insights, its export to storage for the nightly trends, its workbook, and alerts.

param name string
param location string
param tags object
param principalId string
param telemetryAccountId string
param alertEmails string[]

var metricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'
// Metrics are aggregated before sampling, so the nightly job compares events with them.
var exported = ['AppEvents', 'AppRequests', 'AppDependencies', 'AppTraces', 'AppMetrics']

// The functions' log lines begin with their action, such as [poison] or [decided].
// All alerts except the first react to a log line. An app whose settings are refused runs no function
// and writes nothing. The first alert therefore counts runs, and returns a row if the count is 0.
var alerts = [
  {
    name: 'nothing-runs'
    description: 'No metric was collected for 15 minutes, so nothing is scaled. Check whether the app refuses its settings.'
    scope: 'component'
    query: 'requests | where name == "metric_collector" | summarize runs = count() | where runs == 0'
    minutes: 15
    above: 0
    severity: 1
  }
  {
    name: 'poison'
    description: 'A message could not be processed. The log line and the decision log give the reason.'
    scope: 'workspace'
    query: 'AppTraces | where Message startswith "[poison]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'events-gone'
    description: 'Events were deleted from the hub before the app read them. The log line names them.'
    scope: 'workspace'
    query: 'AppTraces | where Message startswith "[gap]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'breaker-opened'
    description: 'Too many events failed. The app processes no events until a probe succeeds or an operator closes the breaker.'
    scope: 'workspace'
    query: 'AppTraces | where Message startswith "[breaker_opened]"'
    minutes: 5
    above: 0
    severity: 1
  }
  {
    name: 'failures'
    description: 'Functions fail. See the exceptions of these operations.'
    scope: 'workspace'
    query: 'AppRequests | where Success == false'
    minutes: 15
    above: 5
    severity: 2
  }
  {
    name: 'at-maximum'
    description: 'For half an hour, a plan has been at its maximum, and its rules have recommended no less.'
    scope: 'workspace'
    query: 'AppTraces | where Message startswith "[decided]" and Message contains "at the maximum of"'
    minutes: 30
    above: 60
    severity: 2
  }
]

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-02-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    sku: { name: 'PerGB2018' }
    retentionInDays: 30
    publicNetworkAccessForIngestion: 'Enabled'
    publicNetworkAccessForQuery: 'Enabled'
    features: { disableLocalAuth: true }
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' = {
  name: name
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    publicNetworkAccessForIngestion: 'Enabled'
    publicNetworkAccessForQuery: 'Enabled'
    DisableLocalAuth: true
  }
}

resource export 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'telemetry-to-storage'
  scope: insights
  properties: {
    storageAccountId: telemetryAccountId
    logs: [for category in exported: { category: category, enabled: true }]
  }
}

resource mayPublish 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(insights.id, principalId, metricsPublisher)
  scope: insights
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', metricsPublisher)
  }
}

var workbookContent = loadJsonContent('../workbook/autoscaler.json')

resource workbook 'Microsoft.Insights/workbooks@2023-06-01' = {
  name: guid(insights.id, 'workbook')
  location: location
  tags: tags
  kind: 'shared'
  properties: {
    displayName: 'Autoscaler'
    category: 'workbook'
    sourceId: insights.id
    // The queries of the workbook run on this resource.
    serializedData: string(union(workbookContent, { fallbackResourceIds: [insights.id] }))
  }
}

resource people 'Microsoft.Insights/actionGroups@2023-01-01' = if (!empty(alertEmails)) {
  name: name
  location: 'global'
  tags: tags
  properties: {
    enabled: true
    groupShortName: 'autoscaler'
    emailReceivers: [
      for email in alertEmails: {
        name: email
        emailAddress: email
        useCommonAlertSchema: true
      }
    ]
  }
}

resource rules 'Microsoft.Insights/scheduledQueryRules@2026-03-01' = [
  for alert in alerts: {
    name: '${name}-${alert.name}'
    location: location
    tags: tags
    properties: {
      displayName: alert.name
      description: alert.description
      severity: alert.severity
      enabled: true
      // The workspace creates a table with its first row. The component has all tables from the start.
      scopes: [alert.scope == 'component' ? insights.id : workspace.id]
      skipQueryValidation: true
      evaluationFrequency: 'PT5M'
      windowSize: 'PT${alert.minutes}M'
      criteria: {
        allOf: [
          {
            query: alert.query
            timeAggregation: 'Count'
            operator: 'GreaterThan'
            threshold: alert.above
            failingPeriods: { numberOfEvaluationPeriods: 1, minFailingPeriodsToAlert: 1 }
          }
        ]
      }
      autoMitigate: true
      actions: { actionGroups: empty(alertEmails) ? [] : [people.id] }
    }
  }
]

output insightsName string = insights.name
output actionGroupIds string[] = empty(alertEmails) ? [] : [people.id]
